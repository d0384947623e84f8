//! Subcommands that moved to `holdfast-admin`. For one release, `dev` rejects them with the new name.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command};

/// The subcommand `finalize` of this one has moved, too.
const CLUSTER: &str = "cluster";
const FINALIZE: &str = "finalize";

/// The former name in `dev`, and the current name in `holdfast-admin`.
const MOVED: [(&str, &str); 12] = [
    ("add-node", "node add"),
    ("apply-config", "config apply"),
    ("backup", "backup"),
    ("move-replica", "replica move"),
    ("rebuild-node", "node rebuild"),
    ("remove-node", "node remove"),
    ("replace-node", "node replace"),
    ("restore", "restore"),
    ("secrets", "secrets"),
    ("show-config", "config show"),
    ("transfer-leaders", "leader transfer"),
    ("usage", "usage"),
];

/// Adds the old names, without help, to the commands of `dev`.
pub(crate) fn add_to(dev: Command) -> Command {
    dev.subcommands(MOVED.iter().map(|(old, _)| moved_command(old)))
        .mut_subcommand(CLUSTER, |cluster| cluster.subcommand(moved_command(FINALIZE)))
}

/// Accepts any flags, because the response does not depend on them.
fn moved_command(name: &'static str) -> Command {
    let arguments = Arg::new("arguments").num_args(0..).allow_hyphen_values(true).trailing_var_arg(true);
    Command::new(name)
        .about("Moved to holdfast-admin")
        .hide(true)
        .disable_help_flag(true)
        .arg(arguments.value_parser(clap::value_parser!(OsString)))
}

/// Returns the error for a subcommand that has moved.
pub(crate) fn error_for(matches: &ArgMatches) -> Option<String> {
    let (name, matches) = matches.subcommand()?;
    if name == CLUSTER {
        let is_finalize = matches.subcommand_name() == Some(FINALIZE);
        return is_finalize.then(|| error("cluster finalize", "cluster finalize"));
    }
    let (old, new) = MOVED.iter().find(|(old, _)| *old == name)?;
    Some(error(old, new))
}

fn error(old: &str, new: &str) -> String {
    format!("`dev {old}` is now `holdfast-admin {new}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(words: &[&str]) -> Option<String> {
        let dev = Command::new("dev").subcommand(Command::new(CLUSTER).subcommand(Command::new("up")));
        let dev = add_to(dev.subcommand(Command::new("inspect")));
        error_for(&dev.try_get_matches_from([&["dev"], words].concat()).unwrap())
    }

    #[test]
    fn every_old_name_is_answered_with_the_new_one_whatever_its_flags_are() {
        for (old, new) in MOVED {
            for flags in [&[][..], &["--help"], &["--shard", "locks_03", "--unknown=1"]] {
                let error = error_of(&[&[old][..], flags].concat());
                assert_eq!(error, Some(format!("`dev {old}` is now `holdfast-admin {new}`")), "{flags:?}");
            }
        }
        let finalize = error_of(&["cluster", "finalize", "--rules", "3"]);
        assert_eq!(finalize.as_deref(), Some("`dev cluster finalize` is now `holdfast-admin cluster finalize`"));
    }

    #[test]
    fn other_subcommands_are_not_affected() {
        assert_eq!(error_of(&["inspect"]), None);
        assert_eq!(error_of(&["cluster", "up"]), None);
    }
}
