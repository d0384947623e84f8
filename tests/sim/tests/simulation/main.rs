//! Whole clusters, simulated: a few seeds in every build, and planted faults in a build with mutations.

#[cfg(feature = "mutations")]
mod mutations;
mod seeds;
