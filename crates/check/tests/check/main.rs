//! Checks against e2fsck: healthy volumes have no findings, damaged ones have the right ones.

mod corpus;
mod damage;
mod healthy;
mod hostile;
mod random;
mod testbed;
