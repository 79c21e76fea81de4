from chaosgate.data.augment import *  # old path; removed when every import is changed
