//! The rules of the tree, each of which a reader can rely on everywhere.

mod dependencies;
mod deploy;
mod documents;
mod house_rules;
mod limits;
mod models;
mod mutations;
mod supervision;
mod vocabulary;
