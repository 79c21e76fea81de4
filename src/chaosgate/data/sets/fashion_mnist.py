from chaosgate.data.fashion_mnist import *  # old path; removed when every import is changed
