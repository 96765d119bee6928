//! Plans the location of every block from contents and options. Pure: no I/O, no clock, same input,
//! same plan.

mod attrs;
mod contents;
mod dirs;
mod geometry;
mod inodes;
mod map;
mod own;
mod params;
mod plan;
mod size;
mod space;

pub(crate) use attrs::{Value, ValueRef};
pub(crate) use contents::{Contents, check_device};
pub(crate) use dirs::{Shape, file_kind};
pub(crate) use geometry::{Geometry, Misfit};
pub(crate) use inodes::LOST_AND_FOUND;
pub(crate) use map::{FileMap, LogicalRun, MapBlocks, ROOT_BYTES};
pub(crate) use own::Own;
pub(crate) use params::Params;
pub(crate) use plan::{Piece, Plan, What};
pub(crate) use size::{Headroom, Planned, plan, smallest_for};
pub(crate) use space::{Run, Short, Space};
