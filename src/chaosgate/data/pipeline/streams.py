from chaosgate.data.streams import *  # old path; removed when every import is changed
