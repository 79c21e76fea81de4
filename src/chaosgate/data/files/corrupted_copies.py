from chaosgate.data.imagenet_c import *  # old path; removed when every import is changed
