//! The tree's rules, tested.

mod arrows;
mod circles;
mod gate;
mod language;
mod modules;
mod tree;
