//! Rules for every text in the tree.

/// Directories of machines on which the service is developed. Nothing may depend on them or speak of them. They are
/// put together here, so that this file keeps the rule itself.
const FOREIGN_ROOTS: [&str; 2] = [concat!("/", "work", "/"), concat!("/", "farm", "/")];

/// The lines, counted from 1, that name an absolute path of a developer's machine.
pub fn foreign_paths(text: &str) -> Vec<usize> {
    let names_one = |line: &str| {
        FOREIGN_ROOTS.iter().any(|root| {
            line.match_indices(root).any(|(start, _)| {
                // After a name, a variable or a host this is the rest of a longer path.
                let before = line[..start].chars().next_back();
                !before.is_some_and(|before| before.is_alphanumeric() || "_-.~})$".contains(before))
            })
        })
    };
    text.lines().enumerate().filter(|(_, line)| names_one(line)).map(|(index, _)| index + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_of_a_machine_are_found_and_longer_paths_are_not() {
        let root = FOREIGN_ROOTS[0];
        let text = format!("cd {root}x\n$HOME{root}x\nhttps://example.com{root}\n\"{root}\"\n{root}y");
        assert_eq!(foreign_paths(&text), [1, 4, 5]);
    }
}
