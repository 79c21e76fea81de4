from chaosgate.data.synthetic import *  # old path; removed when every import is changed
