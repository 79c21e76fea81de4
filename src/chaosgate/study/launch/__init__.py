"""Where the runs of a study are worked on besides this machine: a SLURM cluster, through submitit."""
