//! Decodes values that may contain values of their own type, but only one level deep: decoding deeply nested bytes
//! would overflow the stack, which ends the process. No encoder nests them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::EnumAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, VariantAccess, Visitor,
};

use super::{Command, CommandError, LocksCommand, Response};

/// The numbers of the variants that contain values of their own type.
const AUDITED: u32 = 4;
const COMMAND_BATCH: u32 = 10;
const RESPONSE_BATCH: u32 = 24;

pub(super) fn command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Command>, D::Error> {
    Flat::<_, AUDITED>::deserialize(deserializer).map(|command| Box::new(command.0))
}

pub(super) fn commands<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LocksCommand>, D::Error> {
    let commands = Vec::<Flat<_, COMMAND_BATCH>>::deserialize(deserializer)?;
    Ok(commands.into_iter().map(|command| command.0).collect())
}

pub(super) fn answers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Result<Response, CommandError>>, D::Error> {
    let answers = Vec::<Result<Flat<_, RESPONSE_BATCH>, CommandError>>::deserialize(deserializer)?;
    Ok(answers.into_iter().map(|answer| answer.map(|answer| answer.0)).collect())
}

/// An enum that rejects the variant with that number.
struct Flat<T, const NOT: u32>(T);

impl<'de, T: Deserialize<'de>, const NOT: u32> Deserialize<'de> for Flat<T, NOT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum("", &[], FlatVisitor(PhantomData))
    }
}

struct FlatVisitor<T, const NOT: u32>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const NOT: u32> Visitor<'de> for FlatVisitor<T, NOT> {
    type Value = Flat<T, NOT>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with none of its kind in it")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        let (number, variant) = access.variant::<u32>()?;
        if number == NOT {
            return Err(A::Error::custom("a value is in one of its kind that is in another"));
        }
        T::deserialize(EnumAccessDeserializer::new(NumberedVariant { number, variant })).map(Flat)
    }
}

/// A variant whose number was already decoded.
struct NumberedVariant<V> {
    number: u32,
    variant: V,
}

impl<'de, V: VariantAccess<'de>> EnumAccess<'de> for NumberedVariant<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, V), V::Error> {
        Ok((seed.deserialize(self.number.into_deserializer())?, self.variant))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Actor, Audited};
    use super::*;
    use crate::codec::{self, DecodeError};

    fn audited(command: Command) -> Command {
        Command::Audited(Audited { actor: Actor::Operator, request_id: "r".into(), command: Box::new(command) })
    }

    #[test]
    fn what_does_not_nest_is_read_as_it_was_written() {
        let expire = LocksCommand::ExpireSessions { ids: vec![7], known_revision: 9 };
        let list = Command::Locks(LocksCommand::Batch(vec![expire.clone(), expire]));
        for command in [audited(list.clone()), list, audited(Command::OutboxConfirm { numbers: vec![1] })] {
            assert_eq!(codec::decode::<Command>(&codec::encode(&command)).unwrap(), command);
        }
        let answers = Response::Batch(vec![Ok(Response::Done), Err(CommandError::NamespaceNotFound)]);
        assert_eq!(codec::decode::<Response>(&codec::encode(&answers)).unwrap(), answers);
    }

    #[test]
    fn what_nests_is_refused() {
        let nested = |bytes: Vec<u8>| assert!(matches!(codec::decode::<Command>(&bytes), Err(DecodeError::Damaged(_))));
        nested(codec::encode(&audited(audited(Command::OutboxConfirm { numbers: vec![] }))));
        let list = LocksCommand::Batch(vec![]);
        nested(codec::encode(&Command::Locks(LocksCommand::Batch(vec![list]))));
        let answers = codec::encode(&Response::Batch(vec![Ok(Response::Batch(vec![]))]));
        assert!(matches!(codec::decode::<Response>(&answers), Err(DecodeError::Damaged(_))));
    }

    /// Each level takes a few bytes, and a stack frame while it is decoded.
    #[test]
    fn what_nests_without_end_does_not_overflow_the_stack() {
        let times = 1_000_000;
        let audited = [codec::VERSION, 4].into_iter().chain([0, 0, 4].repeat(times));
        assert!(codec::decode::<Command>(&audited.collect::<Vec<u8>>()).is_err());
        let commands = [codec::VERSION, 2].into_iter().chain([10, 1].repeat(times));
        assert!(codec::decode::<Command>(&commands.collect::<Vec<u8>>()).is_err());
        let answers = [codec::VERSION].into_iter().chain([24, 1, 0].repeat(times));
        assert!(codec::decode::<Response>(&answers.collect::<Vec<u8>>()).is_err());
    }
}
