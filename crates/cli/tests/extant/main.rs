//! The command as users meet it, on volumes that others made.

mod adding;
mod busy;
mod comparing;
mod corpus;
mod damaged;
mod editing;
mod exporting;
mod graphs;
mod hostile;
mod layers;
mod owners;
mod partial;
mod putting;
mod quotas;
mod reading;
mod replacing;
mod shell;
mod shrinking;
mod space;
mod streams;
mod testbed;
mod usage;
