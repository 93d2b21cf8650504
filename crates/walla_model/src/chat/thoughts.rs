//! Handling of reasoning in earlier replies.

/// How a template handles the reasoning in a reply. Templates search for `</think>` in the reply,
/// but cannot read untrusted text, so the split is done for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thoughts {
    /// The reply is one text.
    Kept,
    /// The template takes the reasoning as `reasoning_content`, as Qwen 3's does.
    Apart,
    /// The template removes the reasoning, as `DeepSeek` R1's does.
    CutOff,
}

impl Thoughts {
    pub(super) fn from_source(source: &str) -> Self {
        let cuts = ["split('</think>')", "split(\"</think>\")"];
        if source.contains("reasoning_content") && source.contains("</think>") {
            Self::Apart
        } else if cuts.iter().any(|cut| source.contains(cut)) {
            Self::CutOff
        } else {
            Self::Kept
        }
    }

    /// A reply's text, and the reasoning before it if the template takes it.
    pub(super) fn split(self, content: &str) -> (&str, Option<&str>) {
        match self {
            Self::Kept => (content, None),
            Self::Apart => split_thoughts(content)
                .map_or((content, None), |(thoughts, said)| (said, Some(thoughts))),
            Self::CutOff => (content.rsplit("</think>").next().unwrap_or(content), None),
        }
    }
}

/// The reasoning, and the speech after `</think>`, split as Qwen 3's template does.
fn split_thoughts(content: &str) -> Option<(&str, &str)> {
    let (before, _) = content.split_once("</think>")?;
    let (_, said) = content.rsplit_once("</think>")?;
    let thoughts = before.trim_end_matches('\n').rsplit("<think>").next()?;
    Some((thoughts.trim_start_matches('\n'), said.trim_start_matches('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &str = "<think>\nHm.</think>Well\n</think>\n\nThree silver.";

    #[test]
    fn reasoning_is_split_as_in_python() {
        let qwen = Thoughts::from_source("{{ m.reasoning_content }}{{ c.split('</think>')[-1] }}");
        assert_eq!(qwen, Thoughts::Apart);
        assert_eq!(qwen.split(REPLY), ("Three silver.", Some("Hm.")));
        assert_eq!(qwen.split("\nHello"), ("\nHello", None));
        for source in ["{{ c.split('</think>')[-1] }}", "{{ c.split(\"</think>\") | last }}"] {
            let r1 = Thoughts::from_source(source);
            assert_eq!(r1, Thoughts::CutOff);
            assert_eq!(r1.split(REPLY), ("\n\nThree silver.", None));
            assert_eq!(r1.split("Hello"), ("Hello", None));
        }
        let others = Thoughts::from_source("{{ '<think>\n\n</think>\n' + content }}");
        assert_eq!(others, Thoughts::Kept);
        assert_eq!(others.split(REPLY), (REPLY, None));
    }
}
