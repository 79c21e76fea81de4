from chaosgate.data.hugging_face import *  # old path; removed when every import is changed
