//! The command as used in practice, on volumes created by other tools.

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
mod places;
mod putting;
mod quotas;
mod reading;
mod refused;
mod replacing;
mod shell;
mod shrinking;
mod space;
mod streams;
mod testbed;
mod usage;
mod verbs;
mod wrapped;
