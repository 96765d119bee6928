//! The command as users meet it, on volumes that others made.

mod adding;
mod comparing;
mod corpus;
mod damaged;
mod editing;
mod exporting;
mod hostile;
mod layers;
mod quotas;
mod reading;
mod replacing;
mod shell;
mod shrinking;
mod space;
mod testbed;
mod usage;
