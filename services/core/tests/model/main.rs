//! The lock engine against a naive model: random commands, and after each of them everything that can be seen is equal.
//!
//! A run takes some seconds. `HOLDFAST_MODEL_STEPS` asks for another number of steps, `HOLDFAST_MODEL_SEED` for another
//! start; a failure prints the seed of the run that failed.

mod acquire;
mod commands;
mod compare;
mod graph;
mod quota;
mod random;
mod run;
mod sessions;
mod state;

use holdfast_core::shard::{Application, ShardCore};
use holdfast_core::{Answer, Command, Context, Effect, LocksCommand, NamespaceMessage, Refusal, Rules};

use compare::check_cycle;
use random::{Dice, Style, namespace};
use state::Model;

const WALL_AHEAD_MS: u64 = 1_700_000_000_000;
const STEPS_IN_A_RUN: u64 = 150;

fn context(now_ms: u64) -> Context {
    Context { now_ms, wall_ms: WALL_AHEAD_MS + now_ms, rules: Rules::ONE }
}

/// A shard, the model beside it, and all that was done to both.
struct Run {
    core: ShardCore,
    model: Model,
    log: Vec<(u64, Vec<Command>)>,
    now_ms: u64,
}

impl Run {
    fn new(dice: &mut Dice) -> Self {
        let limits = random::limits(dice);
        let message = NamespaceMessage::Open { namespace: namespace(), limits: limits.clone() };
        let open = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
        let mut core = ShardCore::new(Application::Locks, "locks_00");
        core.advance(&context(1_000));
        core.apply(&context(1_000), &open);
        let mut model = Model::new(namespace(), limits);
        model.advance(1_000, WALL_AHEAD_MS + 1_000);
        Self { core, model, log: vec![(1_000, vec![open])], now_ms: 1_000 }
    }

    /// One entry of the log with some commands, done to both.
    fn entry(&mut self, passed_ms: u64, commands: u64, mut next: impl FnMut(&Model) -> Command) {
        self.now_ms += passed_ms;
        let context = context(self.now_ms);
        let first_event = self.model.events.len();
        self.core.advance(&context);
        let before = self.model.clone();
        self.model.advance(context.now_ms, context.wall_ms);
        let passed = (self.core.revision(), self.core.next_deadline_ms());
        assert_eq!(passed, (self.model.revision, self.model.next_deadline()), "after\n{}", before.sketch());
        self.log.push((self.now_ms, vec![]));
        for _ in 0..commands {
            let command = next(&self.model);
            self.log.last_mut().expect("just pushed").1.push(command.clone());
            self.command(&context, &command);
        }
        let expected = sorted(self.model.take_effects(first_event));
        assert_eq!(sorted(self.core.take_effects()), expected, "effects");
        self.compare();
    }

    fn command(&mut self, context: &Context, command: &Command) {
        let before = self.model.clone();
        let expected = self.expected(command);
        let reply = self.core.apply(context, command);
        assert_eq!(reply.clock_ms, self.core.clock_ms());
        let mut got = reply.outcome;
        if let (Ok(Answer::Acquired { outcome, .. }), Command::Locks(LocksCommand::Acquire(request))) =
            (&mut got, command)
        {
            check_cycle(&before, request, outcome);
        }
        match (&got, &expected) {
            (Err(Refusal::QuotaExceeded { .. }), Err(Refusal::QuotaExceeded { .. }))
            | (Err(Refusal::Malformed(_)), Err(Refusal::Malformed(_))) => {}
            _ => assert_eq!(got, expected, "answer to {command:?}\nafter\n{}", before.sketch()),
        }
    }

    fn expected(&mut self, command: &Command) -> Result<Answer, Refusal> {
        let Command::Locks(command) = command else { unreachable!("only commands of locks") };
        let model = &mut self.model;
        match command {
            LocksCommand::Acquire(request) => model.acquire(request),
            LocksCommand::Release(request) => model.release(request),
            LocksCommand::Delete { path, .. } => {
                model.delete(path);
                Ok(Answer::Done)
            }
            LocksCommand::Cancel(cancel) => Ok(model.cancel(cancel)),
            LocksCommand::Reset(reset) => Ok(model.reset(reset)),
            LocksCommand::OpenSession(open) => model.open(open),
            LocksCommand::CloseSession { session_id, message, .. } => model.close(session_id, *message),
            LocksCommand::ExpireSessions { ids, seen } => Ok(model.expire(ids, *seen)),
            LocksCommand::LockInfo(info) => model.lock_info(info),
            LocksCommand::Deliver { .. } => unreachable!("the namespace stays open"),
            LocksCommand::InOrder(_) => unreachable!("a list does what its commands do one by one"),
        }
    }

    /// A replica that takes a snapshot here goes on in place of the one that made it.
    fn replace_by_restored(&mut self) {
        let chunks = self.core.snapshot();
        let restored = ShardCore::restore(Application::Locks, "locks_00", &chunks).expect("it was just taken");
        assert_eq!(restored.snapshot(), chunks);
        assert_eq!(restored.footprint(), self.core.footprint());
        let effects = self.core.take_effects();
        assert_eq!(effects, [], "they were taken");
        self.core = restored;
    }

    /// A replica that applies everything again, and takes no effects, comes to the same bytes.
    fn replay(&self) {
        let mut core = ShardCore::new(Application::Locks, "locks_00");
        for (now_ms, commands) in &self.log {
            let context = context(*now_ms);
            core.advance(&context);
            for command in commands {
                core.apply(&context, command);
            }
        }
        assert_eq!(core.snapshot(), self.core.snapshot());
    }

    /// A snapshot with a damaged byte is refused, or makes a state that is whole.
    fn restore_damaged(&self, dice: &mut Dice) {
        let mut chunks = self.core.snapshot();
        let chunk = &mut chunks[0];
        let at = dice.below(chunk.len() as u64) as usize;
        chunk[at] ^= 1 << dice.below(8);
        if let Ok(restored) = ShardCore::restore(Application::Locks, "locks_00", &chunks) {
            restored.verify();
        }
    }

    /// After a reset, and when all transitions are over, nothing is left.
    fn reset(&mut self) {
        let reset = holdfast_core::Reset { namespace: namespace(), live_owners: vec![], before_revision: None };
        self.entry(1, 1, |_| Command::Locks(LocksCommand::Reset(reset.clone())));
        self.entry(1_000, 0, |_| unreachable!("no command is asked for"));
    }

    /// After the deletion of the namespace nothing is left, and everybody concerned is told.
    fn purge(&mut self) {
        let context = context(self.now_ms);
        self.core.advance(&context);
        self.model.advance(context.now_ms, context.wall_ms);
        let message = NamespaceMessage::Purge { namespace: namespace() };
        let purge = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message });
        self.core.apply(&context, &purge);
        self.log.push((self.now_ms, vec![purge]));
        let expected = sorted(self.model.purge());
        assert_eq!(sorted(self.core.take_effects()), expected, "effects of a purge");
        self.core.verify();
        assert_eq!(self.core.next_deadline_ms(), None);
    }
}

fn sorted(mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.sort_by_key(|effect| format!("{effect:?}"));
    effects
}

fn run(seed: u64) {
    let dice = &mut Dice::new(seed);
    let style = Style::new(dice);
    let mut run = Run::new(dice);
    for _ in 0..STEPS_IN_A_RUN {
        let passed_ms = if dice.one_in(2) { 0 } else { dice.below(12) };
        let commands = if dice.one_in(6) { dice.below(4) } else { 1 };
        run.entry(passed_ms, commands, |model| style.command(dice, model));
        if dice.one_in(10) {
            run.compare_queries(dice);
        }
        if dice.one_in(40) {
            run.replace_by_restored();
        }
        if dice.one_in(80) {
            run.restore_damaged(dice);
        }
    }
    run.compare_events(dice);
    if dice.one_in(2) {
        run.purge();
    } else {
        run.reset();
        run.compare_events(dice);
    }
    assert_eq!(run.core.footprint(), Default::default());
    run.replay();
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn the_engine_does_what_the_naive_model_does() {
    let steps = setting("HOLDFAST_MODEL_STEPS", if cfg!(debug_assertions) { 30_000 } else { 300_000 });
    let first = setting("HOLDFAST_MODEL_SEED", 1);
    let runs = steps.div_ceil(STEPS_IN_A_RUN);
    for seed in first..first + runs {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("HOLDFAST_MODEL_STEPS=1 HOLDFAST_MODEL_SEED={seed} reproduces it");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{} steps in {runs} runs, from seed {first} on", runs * STEPS_IN_A_RUN);
}
