//! Tests of the tree's rules.

mod arrows;
mod casts;
mod circles;
mod file_names;
mod gate;
mod licences;
mod modules;
mod tree;
mod width;
