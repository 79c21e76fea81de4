from chaosgate.data.imagenet import *  # old path; removed when every import is changed
