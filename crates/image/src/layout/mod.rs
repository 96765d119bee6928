//! Plans the location of every block from contents and options. Pure: no I/O, no clock, same input,
//! same plan.

mod attrs;
mod block_map;
mod contents;
mod dirs;
mod free_runs;
mod geometry;
mod inode_numbers;
mod own;
mod params;
mod plan;
mod size;

pub(crate) use attrs::{Value, ValueRef};
pub(crate) use block_map::{FileMap, LogicalRun, MapBlocks, ROOT_BYTES};
pub(crate) use contents::{Contents, check_device};
pub(crate) use dirs::{Shape, file_kind};
pub(crate) use free_runs::{Run, Short, Space};
pub(crate) use geometry::{Geometry, Misfit};
pub(crate) use inode_numbers::LOST_AND_FOUND;
pub(crate) use own::Own;
pub(crate) use params::Params;
pub(crate) use plan::{Piece, Plan, What};
pub(crate) use size::{Headroom, Planned, plan, smallest_for};
