from chaosgate.data.listing import *  # old path; removed when every import is changed
