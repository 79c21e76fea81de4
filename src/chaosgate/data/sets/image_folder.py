from chaosgate.data.image_folder import *  # old path; removed when every import is changed
