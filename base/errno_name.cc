#include <errno.h>

#include "base/result.h"

namespace ckpt {

const char* errno_name(int error) {
  switch (error < 0 ? -error : error) {
#define CKPT_NAME(e) \
  case e:            \
    return #e;
    CKPT_NAME(EPERM)
    CKPT_NAME(ENOENT)
    CKPT_NAME(ESRCH) CKPT_NAME(EINTR) CKPT_NAME(EIO) CKPT_NAME(ENXIO) CKPT_NAME(E2BIG) CKPT_NAME(ENOEXEC)
        CKPT_NAME(EBADF) CKPT_NAME(ECHILD) CKPT_NAME(EAGAIN) CKPT_NAME(ENOMEM) CKPT_NAME(EACCES)
            CKPT_NAME(EFAULT) CKPT_NAME(EBUSY) CKPT_NAME(EEXIST) CKPT_NAME(EXDEV) CKPT_NAME(ENODEV)
                CKPT_NAME(ENOTDIR) CKPT_NAME(EISDIR) CKPT_NAME(EINVAL) CKPT_NAME(ENFILE) CKPT_NAME(EMFILE)
                    CKPT_NAME(ENOTTY) CKPT_NAME(ETXTBSY) CKPT_NAME(EFBIG) CKPT_NAME(ENOSPC) CKPT_NAME(ESPIPE)
                        CKPT_NAME(EROFS) CKPT_NAME(EPIPE) CKPT_NAME(ERANGE) CKPT_NAME(ENAMETOOLONG)
                            CKPT_NAME(ENOSYS) CKPT_NAME(ENOTEMPTY) CKPT_NAME(ELOOP) CKPT_NAME(EOVERFLOW)
                                CKPT_NAME(EUSERS) CKPT_NAME(EOPNOTSUPP) CKPT_NAME(ECONNREFUSED)
                                    CKPT_NAME(ETIMEDOUT) CKPT_NAME(EDQUOT) CKPT_NAME(ESTALE)
                                        CKPT_NAME(ECONNRESET) CKPT_NAME(EADDRINUSE) CKPT_NAME(EPROTO)
                                            CKPT_NAME(EBADMSG)
#undef CKPT_NAME
                                                default : return "E?";
  }
}

}  // namespace ckpt
