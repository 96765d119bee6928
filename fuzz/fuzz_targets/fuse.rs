//! Any bytes as a request of the kernel: parsed or refused, never a panic.
#![no_main]

use extant_fuse::wire::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Request::parse(bytes);
});
