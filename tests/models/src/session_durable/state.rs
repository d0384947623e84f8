//! What the model's states are made of.

/// Sessions; the last one is the liar, where there is one.
pub const SESSIONS: usize = 3;
/// Locks. Each is claimed by one session at a time.
pub const LOCKS: usize = 2;
/// Gateways.
pub const GATEWAYS: usize = 2;
/// Epochs, and so leaders.
pub const EPOCHS: usize = 3;
/// Commands of one session, and answers to it, that are on their way. More is left out, and counted.
pub const QUEUE: usize = 4;
/// Tokens of an epoch lie above all of earlier ones.
pub const TOKENS_OF_EPOCH: u8 = 16;

/// What a session asked for at a lock: nothing (request 0), a request that waits (token 0), or a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Tells requests of one session for one lock apart; they rise.
    pub request: u8,
    /// The fencing token of a hold.
    pub token: u8,
}

impl Claim {
    /// Neither a request nor a hold.
    pub const NONE: Self = Self { request: 0, token: 0 };

    /// Whether it is a hold.
    pub fn is_held(self) -> bool {
        self.token != 0
    }

    /// Whether it is a request that waits.
    pub fn is_waiting(self) -> bool {
        self.request != 0 && self.token == 0
    }
}

/// What one session asked for, by lock.
pub type Table = [Claim; LOCKS];

/// A first-in, first-out queue of at most [`QUEUE`] items. Free entries have the default value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue<T> {
    items: [T; QUEUE],
    len: u8,
}

/// A step that would exceed a bound of the model is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBound;

impl<T: Copy + Default> Queue<T> {
    /// The items, oldest first.
    pub fn items(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) -> Result<(), OverBound> {
        let free = self.items.get_mut(usize::from(self.len)).ok_or(OverBound)?;
        *free = item;
        self.len += 1;
        Ok(())
    }

    /// Removes the item at `index`, which must exist.
    pub fn remove(&mut self, index: usize) -> T {
        let item = self.items[index];
        self.items.copy_within(index + 1.., index);
        self.items[QUEUE - 1] = T::default();
        self.len -= 1;
        item
    }

    /// Removes what a predicate rejects.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        let mut kept = Self::default();
        for item in self.items().iter().filter(|item| keeps(item)) {
            let free = usize::from(kept.len);
            kept.items[free] = *item;
            kept.len += 1;
        }
        *self = kept;
    }

    /// Sorts by a key; items with equal keys keep their order.
    pub fn sort_by_key(&mut self, key: impl Fn(&T) -> (u8, u8)) {
        let len = usize::from(self.len);
        self.items[..len].sort_by_key(key);
    }
}

/// What a gateway tells a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandKind {
    /// Fills the free entries of a queue.
    #[default]
    None,
    /// The ledger of a session.
    Report,
    /// The part of a report that has the last lock only.
    LaterPart,
    /// What a resumed client holds.
    LockInfo,
    /// A request for the one lock in the table.
    Acquire,
    /// The end of the one request in the table, whether it waits or holds.
    Release,
}

/// A message from a gateway to a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// What it is.
    pub kind: CommandKind,
    /// The leader that it is for.
    pub epoch: u8,
    /// The connection that it belongs to.
    pub connection: u8,
    /// What it is about.
    pub table: Table,
}

/// What a leader tells a gateway, or a gateway a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerKind {
    /// Fills the free entries of a queue.
    #[default]
    None,
    /// The one request in the table holds its lock.
    Granted,
    /// The one claim in the table is lost.
    Revoked,
    /// The gateway has still to enter the one claim in the table into its ledger.
    Enter,
}

/// A message from a leader to a gateway, or from a gateway to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it is.
    pub kind: AnswerKind,
    /// The leader that it comes from; 0 from a gateway to a client.
    pub epoch: u8,
    /// The connection that it belongs to; 0 from a gateway to a client.
    pub connection: u8,
    /// What it is about.
    pub table: Table,
}

/// A table with one claim.
pub fn only(lock: usize, claim: Claim) -> Table {
    let mut table = Table::default();
    table[lock] = claim;
    table
}

/// Where a session stands in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It lives.
    #[default]
    Open,
    /// It expired, and its holds are in transition.
    Expired,
    /// It ended, and its holds with it.
    Gone,
}

/// A leader: what it applied of the log, and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// Of each session, as applied.
    pub status: [Status; SESSIONS],
    /// The connection of each session, as applied.
    pub connection: [u8; SESSIONS],
    /// Tokens of claims that were ended by force, as applied.
    pub forfeits: [[u8; LOCKS]; SESSIONS],
    /// Whose report it has: one bit each.
    pub reported: u8,
    /// Of whose present connection it has taken the first message, a report or a `lock_info`: one bit each.
    pub introduced: u8,
    /// Whether the table is complete and it grants.
    pub is_complete: bool,
    /// Tokens given out in its epoch.
    pub tokens: u8,
    /// Reported claims, then the lock table.
    pub tables: [Table; SESSIONS],
}

/// What a gateway has of one connection of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The connection; 0 where there is none.
    pub connection: u8,
    /// The latest epoch that the gateway heard of: what is older, it drops.
    pub promise: u8,
    /// Whether it has all that the client holds.
    pub is_complete: bool,
    /// Requests and holds.
    pub table: Table,
}

/// How a client sees its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// It counts on its session.
    #[default]
    Lives,
    /// Its own count has ended: it uses nothing any more. Its holds are protected until their transition is over.
    Over,
}

/// A client, the only one that knows what it really holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Whether it counts on its session.
    pub life: Life,
    /// The connection from which it takes answers.
    pub connection: u8,
    /// Whether that connection still works.
    pub is_connected: bool,
    /// What it asked for and holds.
    pub table: Table,
    /// Locks at which it only claims to hold something: one bit each.
    pub lies: u8,
    /// The latest hold that it gave up, of each lock, with its receipt. Only the liar keeps them.
    pub receipts: Table,
    /// Requests made for each lock.
    pub requests: [u8; LOCKS],
    /// Answers from its gateway.
    pub inbox: Queue<Answer>,
}

impl Client {
    /// Whether its claim for the lock is a lie.
    pub fn lies_about(&self, lock: usize) -> bool {
        self.lies & 1 << lock != 0
    }

    /// Gives up whatever it has at the lock.
    pub fn forget(&mut self, lock: usize) {
        self.table[lock] = Claim::NONE;
        self.lies &= !(1 << lock);
    }
}

/// How often things may still happen in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Acquires, of all sessions together.
    pub requests: u8,
    /// Broken connections, and connections that replace one that still works.
    pub moves: u8,
    /// Crashes of gateways.
    pub crashes: u8,
    /// Sessions that are closed or expire.
    pub ends: u8,
    /// Locks opened by force.
    pub forfeits: u8,
    /// Resumes that claim something that is not held.
    pub lies: u8,
}

/// Ticks of the timed configurations; all 0 in the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// How long each session may still be silent, as its leader sees it.
    pub left: [u8; SESSIONS],
    /// How long each client believes that its session lives.
    pub believed: [u8; SESSIONS],
    /// How long each expired session is still in transition.
    pub transition: [u8; SESSIONS],
    /// Sessions whose end is proposed: one bit each.
    pub judged: u8,
    /// For how long the present leader has been without a complete table.
    pub rebuilding: u8,
}

/// What a step itself broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// Nothing.
    #[default]
    Nothing,
    /// A client was to lose what it holds, though nobody opened it by force.
    HonestLost,
    /// A client took a hold with a lower token than the lock has had.
    TokenFell,
    /// A session expired while its client counted on it.
    ExpiredEarly,
}

/// A state of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The present epoch, from 1 on. What its leader applied is the log.
    pub epoch: u8,
    /// By epoch. One whose acts can reach nobody any more is as new.
    pub leaders: [Leader; EPOCHS],
    /// By session and gateway.
    pub ledgers: [[Ledger; GATEWAYS]; SESSIONS],
    /// By session.
    pub clients: [Client; SESSIONS],
    /// On their way from gateways to leaders, by session.
    pub commands: [Queue<Command>; SESSIONS],
    /// On their way from leaders to gateways, by session.
    pub answers: [Queue<Answer>; SESSIONS],
    /// The highest token that any client has taken, by lock.
    pub highest: [u8; LOCKS],
    /// Tokens of claims that were ended by force: what really happened, whatever leaders remember.
    pub forced: [[u8; LOCKS]; SESSIONS],
    /// What may still happen.
    pub budget: Budget,
    /// The clock.
    pub time: Time,
    /// What the latest step broke.
    pub broken: Broken,
}

impl State {
    /// The leader of an epoch.
    pub fn leader(&self, epoch: u8) -> &Leader {
        &self.leaders[usize::from(epoch) - 1]
    }

    /// The leader of an epoch.
    pub fn leader_mut(&mut self, epoch: u8) -> &mut Leader {
        &mut self.leaders[usize::from(epoch) - 1]
    }

    /// The present leader: what it applied is the log.
    pub fn log(&self) -> &Leader {
        self.leader(self.epoch)
    }

    /// The gateway that has a connection of a session.
    pub fn gateway_of(&self, session: usize, connection: u8) -> Option<usize> {
        self.ledgers[session].iter().position(|ledger| connection != 0 && ledger.connection == connection)
    }

    /// The ledger of the connection that a client uses.
    pub fn ledger_in_use(&mut self, session: usize) -> Option<&mut Ledger> {
        let client = &self.clients[session];
        let gateway = self.gateway_of(session, client.connection).filter(|_| client.is_connected)?;
        Some(&mut self.ledgers[session][gateway])
    }

    /// Whether a client really holds a lock: not by a lie, not what was opened by force. A session that expired holds
    /// until its transition is over.
    pub fn holds(&self, session: usize, lock: usize) -> bool {
        let client = &self.clients[session];
        let claim = client.table[lock];
        claim.is_held()
            && !client.lies_about(lock)
            && claim.token != self.forced[session][lock]
            && self.log().status[session] != Status::Gone
    }
}
