//! The tree's rules, tested.

mod arrows;
mod circles;
mod gate;
mod licences;
mod modules;
mod tree;
mod width;
