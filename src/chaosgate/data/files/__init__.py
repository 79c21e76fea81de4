"""Folders, lists of files, downloads, copies."""
