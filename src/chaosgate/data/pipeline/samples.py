from chaosgate.data.samples import *  # old path; removed when every import is changed
