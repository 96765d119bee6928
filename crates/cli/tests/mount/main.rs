//! Mounted volumes, used by real programs.

mod access_times;
mod bed;
mod deaths;
mod emulated_users;
mod exec;
mod files;
mod interrupts;
mod kills;
mod life;
mod names;
mod options;
mod owners;
mod programs;
mod requests;
#[path = "../extant/testbed.rs"]
#[expect(dead_code, reason = "shared with the other tests of the command")]
mod testbed;
mod watching;
mod writeback;
