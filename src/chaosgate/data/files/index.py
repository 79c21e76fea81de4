from chaosgate.data.index import *  # old path; removed when every import is changed
