//! The server's replies to commands that the module calls.

use super::api::api;
use redis_module::raw;
use std::ptr::NonNull;

/// A reply, which is freed when this is dropped.
pub(super) struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl CallReply {
    /// Takes over the result of RedisModule_Call. `None` if the server did not make the call.
    pub(super) fn adopt(raw: *mut raw::RedisModuleCallReply) -> Option<CallReply> {
        NonNull::new(raw).map(CallReply)
    }

    /// The text of an error or a string. Empty for any other reply.
    pub(super) fn text(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the reply is ours, and its text lives as long. Any other reply gives null.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &mut len));
            if start.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(start.cast(), len)
        }
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: the reply is ours to free, once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
