//! Wait tables for pages and buffers by name: Linux's and ours.
//!
//! In Linux 2.6.6 waking a page wakes all waiters in its bucket (mm/filemap.c: `page_waitqueue`,
//! `unlock_page`). With the filter of "[0/2] filtered wakeups" it examines all of them and wakes
//! those of its page. Ours visits only those.

use crate::{Kind, Named, OURS};
use extant_rt::WaitConfig;
use extant_rt::wait::{Discipline, Hash};

/// Creates the configurations of a table for pages and one for buffers.
pub type MakeWaits = fn() -> [WaitConfig; 2];

/// Where sparc64 maps memory, and the size of its `struct page`; page addresses are hashed.
const PAGES: Hash = Hash::Linux26 { base: 0xffff_f800_0040_0000, stride_bytes: 64 };

/// Sizes as in 2.6.6 for 3.5 GiB in pages of 8 KiB: 2,048 buckets for pages (`zone->wait_table`),
/// 128 for buffers.
fn linux(discipline: Discipline) -> [WaitConfig; 2] {
    [
        WaitConfig { name: "pages", bucket_bits: 11, discipline, hash: PAGES },
        WaitConfig { name: "buffers", bucket_bits: 7, discipline, hash: Hash::Golden },
    ]
}

/// Wait disciplines by name.
pub static WAITS: [Named<MakeWaits>; 4] = [
    Named {
        name: "linux-2.6.6",
        about: "a wake-up wakes its whole bucket",
        make: || linux(Discipline::WholeBucket),
    },
    Named {
        name: "filtered",
        about: "a wake-up looks at its bucket and wakes those that wait for its page or buffer",
        make: || linux(Discipline::Filtered),
    },
    Named {
        name: "linux-6",
        about: "the same with one table of 256 buckets (mm/filemap.c: `folio_wait_table`, as recalled)",
        make: || {
            let of = |name| WaitConfig { discipline: Discipline::Filtered, ..WaitConfig::new(name) };
            ["pages", "buffers"].map(of)
        },
    },
    Named {
        name: OURS,
        about: "a wake-up visits only those that wait for its page or buffer",
        make: || ["pages", "buffers"].map(WaitConfig::new),
    },
];

impl Kind for MakeWaits {
    const NAME: &'static str = "a wait discipline";
    const TABLE: &'static [Named<Self>] = &WAITS;
}
