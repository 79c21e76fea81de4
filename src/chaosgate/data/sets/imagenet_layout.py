from chaosgate.data.imagenet_layout import *  # old path; removed when every import is changed
