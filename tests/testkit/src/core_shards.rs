//! The real state machines of all shards, for a node without consensus, storage and other replicas.
#![allow(missing_docs, reason = "a test peer")]

use std::collections::BTreeMap;

use holdfast_cluster::ShardMap;
use holdfast_core::shard::ShardState;
use holdfast_core::{Application, Command, EntryContext, Page, Query, Reply, Subscribe, Topic, codec};
use holdfast_proto::internal::{self, Call, answer, call};

use crate::fake_node::Action;
use crate::subscriptions::rejected;

/// The only term: no other node ever leads.
pub const TERM: u64 = 1;

type Now = Box<dyn Fn() -> EntryContext + Send + Sync>;

pub struct CoreShards {
    map: ShardMap,
    states: BTreeMap<String, ShardState>,
    now: Now,
    /// Whether messages to other shards stay where they are.
    pub outboxes_paused: bool,
}

impl CoreShards {
    /// All shards of a cluster, empty. `now` returns the context of an entry that is proposed now.
    pub fn new(map: ShardMap, now: impl Fn() -> EntryContext + Send + Sync + 'static) -> Self {
        let mut states = BTreeMap::new();
        for application in Application::ALL {
            for shard in map.shards(application) {
                states.insert(shard.id.clone(), ShardState::new(application, &shard.id));
            }
        }
        Self { map, states, now: Box::new(now), outboxes_paused: false }
    }

    /// What an entry would have that is proposed now.
    pub fn context(&self) -> EntryContext {
        (self.now)()
    }

    /// The running clock of all shards.
    pub fn clock_ms(&self) -> u64 {
        self.context().now_ms
    }

    /// The shard that a call is for.
    pub fn shard_of(&self, call: &Call) -> String {
        self.map.shard_for(application_of(call), call.key).id.clone()
    }

    /// The first shard of an application.
    pub fn first_shard(&mut self, application: Application) -> &mut ShardState {
        let id = &self.map.shard_for(application, 0).id;
        self.states.get_mut(id).expect("every shard of the map has a state")
    }

    /// What the leader of the term does with a call.
    pub fn serve(&mut self, call: &Call) -> Action {
        let reply = match call.body.as_ref().expect("a call has a body") {
            call::Body::Command(bytes) => {
                let command: Command = codec::decode(bytes).expect("callers encode commands");
                self.execute(&self.shard_of(call), &command)
            }
            call::Body::Query(bytes) => {
                let query: Query = codec::decode(bytes).expect("callers encode queries");
                self.states[&self.shard_of(call)].query(self.clock_ms(), &query)
            }
            call::Body::Subscribe(_) => return Action::Publish,
        };
        Action::Answer(outcome_of(&reply))
    }

    /// Applies a command, and delivers what it tells other shards.
    pub fn execute(&mut self, shard: &str, command: &Command) -> Reply {
        let reply = self.apply(shard, command);
        self.deliver_all();
        reply
    }

    /// Applies a command, and delivers nothing.
    pub fn apply(&mut self, shard: &str, command: &Command) -> Reply {
        let context = self.context();
        let state = self.states.get_mut(shard).expect("every shard of the map has a state");
        state.advance(&context);
        state.apply(&context, command)
    }

    /// Lets the time pass in all shards: due items end.
    pub fn advance_all(&mut self) {
        let context = self.context();
        self.states.values_mut().for_each(|state| state.advance(&context));
    }

    /// Empties the outboxes, as the nodes of leaders do.
    pub fn deliver_all(&mut self) {
        while !self.outboxes_paused {
            let mut pending = Vec::new();
            for (shard, state) in &self.states {
                for (number, message) in state.outbox().messages() {
                    pending.push((shard.clone(), *number, message.clone()));
                }
            }
            if pending.is_empty() {
                return;
            }
            for (source, number, message) in pending {
                let shard = self.map.shard_for(message.application, message.shard_key).id.clone();
                self.apply(&shard, &message.command).outcome.expect("a shard takes what another one tells it");
                self.apply(&source, &Command::OutboxConfirm { numbers: vec![number] });
            }
        }
    }

    /// The page that a subscriber gets, or its last answer. Each application has one shard.
    pub fn page(&self, subscribe: &Subscribe) -> Result<Page, answer::Outcome> {
        let application = match subscribe.topic {
            Topic::AccountChanges => Application::Accounts,
            _ => Application::Locks,
        };
        let shard = &self.map.shard_for(application, 0).id;
        // Sessions have no history, and nothing happens to them.
        let Some(query) = subscribe.topic.query(subscribe.from) else {
            return Ok(Page::new::<()>(&[], subscribe.from.unwrap_or(1)));
        };
        Page::of_reply(&self.states[shard].query(self.clock_ms(), &query)).map_err(rejected)
    }
}

/// The answer with that reply.
pub fn outcome_of(reply: &Reply) -> answer::Outcome {
    answer::Outcome::Reply(codec::encode(reply).into())
}

/// The application of the shard that a call is for.
pub fn application_of(call: &Call) -> Application {
    match call.application() {
        internal::Application::Accounts => Application::Accounts,
        internal::Application::Namespaces => Application::Namespaces,
        internal::Application::Locks => Application::Locks,
        internal::Application::Unspecified => panic!("no shard is named: {call:?}"),
    }
}
