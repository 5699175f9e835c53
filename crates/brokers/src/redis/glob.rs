//! Converts patterns to Redis globs, whose `*` also matches separators: a glob matches at least the topics of its
//! pattern.

use wirespeed_engine::topics::Pattern;

/// Returns the glob for a pattern under a prefix. It may match more topics than the pattern.
pub(crate) fn glob(prefix: &str, pattern: &Pattern) -> String {
    let mut glob = String::new();
    escape(prefix, &mut glob);
    for (index, segment) in pattern.segments().enumerate() {
        if index > 0 {
            glob.push('.');
        }
        match segment {
            "*" | ">" => glob.push('*'),
            segment => escape(segment, &mut glob),
        }
    }
    glob
}

fn escape(text: &str, glob: &mut String) {
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
            glob.push('\\');
        }
        glob.push(letter);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, expected) in
            [("a.*", "p[.a.*"), ("a.>", "p[.a.*"), ("*.b?[x]\\", "p[.*.b\\?\\[x\\]\\\\"), (">", "p[.*")]
        {
            let expected = expected.replacen("p[", "p\\[", 1);
            assert_eq!(glob("p[.", &Pattern::new(pattern).unwrap()), expected);
        }
    }
}
