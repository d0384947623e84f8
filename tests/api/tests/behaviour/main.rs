//! What Holdfast answers over its ports, against real processes.

mod support;

mod accounts;
mod acquiring;
mod api_keys;
mod bad_bodies;
mod bad_heads;
mod bad_messages;
mod bad_values;
mod dlocks_clients;
mod ending;
mod expiring;
mod extending;
mod listing;
mod names;
mod namespaces;
mod nodes;
mod observing;
mod restarts;
mod starts;
mod tenants;
mod tokens;
mod transition;
