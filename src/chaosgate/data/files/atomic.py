from chaosgate.data.atomic import *  # old path; removed when every import is changed
