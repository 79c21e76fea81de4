from chaosgate.data.pets import *  # old path; removed when every import is changed
