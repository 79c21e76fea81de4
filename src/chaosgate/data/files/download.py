from chaosgate.data.download import *  # old path; removed when every import is changed
