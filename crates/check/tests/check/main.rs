//! Checks and repairs compared with e2fsck: healthy volumes have no findings, damaged ones have the
//! right findings, and repaired ones have none again.

mod corpus;
mod damage;
mod flips;
mod healthy;
mod hostile;
mod indexes;
mod journals;
mod lost_nodes;
mod own_files;
mod places;
mod random;
mod repairs;
mod survivors;
mod testbed;
mod undoing;
