//! Leaving: the VM must not exit while the device works. On a CPU device its threads would run on into libraries that
//! `exit` has torn down already, and crash.

use rustler::Env;

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
mod option {
    use std::ffi::{c_int, c_void};

    use rustler::Env;

    /// `ErlNifOption`, from erl_nif.h of OTP 26.
    const DELAY_HALT: c_int = 1;
    const ON_HALT: c_int = 2;

    unsafe extern "C" {
        fn enif_set_option(env: *mut c_void, option: c_int, ...) -> c_int;
    }

    unsafe extern "C" fn on_halt(_private_data: *mut c_void) {
        for engine in crate::engines::all() {
            // What fails now concerns nobody any more.
            let _ = engine.wait();
        }
    }

    pub fn set(env: Env) {
        let env = env.as_c_arg().cast();
        // SAFETY: called while the library is loaded, as both options ask. DELAY_HALT takes no further argument,
        // ON_HALT a function of this signature, which stays in memory because the library is never unloaded.
        unsafe {
            enif_set_option(env, DELAY_HALT);
            enif_set_option(env, ON_HALT, on_halt as unsafe extern "C" fn(*mut c_void));
        }
    }
}

/// Makes `halt` wait for NIFs that are running and for the device.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub fn wait_for_device(env: Env) {
    option::set(env);
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
pub fn wait_for_device(_env: Env) {}
