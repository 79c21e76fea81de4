from chaosgate.data.decoding import *  # old path; removed when every import is changed
