from chaosgate.data.cifar import *  # old path; removed when every import is changed
