//! Torture tests: workloads, crash states, a reference model, and oracles that compare them.
//!
//! [`ace`] and [`diff`] generate workloads of [`Op`]s. A [`Filesystem`] runs one on a recorded
//! device. From the log, [`states`] derives every disk that a power cut may leave; each is
//! recovered, read back as a [`Tree`], and must be explained by the [`Model`], which knows what was
//! promised. `e2fsck` and the kernel check the same states. The harness itself is tested with a toy
//! file system whose bugs it must find.
//!
//! Production code never needs this crate. It knows file systems only as [`Subject`]s, not how they
//! work.
//!
//! ```
//! use extant_torture::{Ace, Op};
//!
//! let seq1 = Ace::new(1);
//! let workload = seq1.workload(0);
//! assert!(workload.ops.iter().any(|op| matches!(op, Op::Create { .. })));
//! ```
#![forbid(unsafe_code)]

pub mod ace;
pub mod campaign;
pub mod cases;
pub mod check;
pub mod diff;
pub mod directed;
pub mod faults;
mod host;
pub mod hostile;
mod image;
mod meddle;
mod model;
mod op;
mod ours;
mod pattern;
pub mod states;
#[expect(clippy::missing_errors_doc, reason = "the tests compare which errors an operation returns")]
mod subject;
pub mod tasks;
mod tree;

pub use ace::{Ace, Workload};
pub use check::{Filesystem, Recovered, Run};
pub use extant::{RenameMode, Special, XattrMode};
pub use host::Host;
pub use image::{Image, ImageDevice};
pub use meddle::{Meddler, Meddling};
pub use model::{Model, Violation};
pub use op::{Durability, Fallocate, Op, PUT_TIME, Time};
pub use ours::{OurVolume, Ours, SlowDevice};
pub use pattern::pattern;
pub use subject::{Errno, Kind, Outcome, Stat, Subject, apply};
pub use tree::{Found, Tree, Unreadable, join, split};
