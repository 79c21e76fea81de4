from chaosgate.data.copies import *  # old path; removed when every import is changed
