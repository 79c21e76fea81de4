from chaosgate.data.imagenet_variants import *  # old path; removed when every import is changed
