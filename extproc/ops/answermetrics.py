"""What is counted of answers, as Envoy's access log tells of them when they are over."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_ANSWER_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_OUTPUT_BUCKETS_TOKENS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_ARMS = ("strategy", "control", "observed")
_STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class AnswerMetrics:
    """Answers to the requests that we were asked about."""

    def __init__(self, registry: CollectorRegistry) -> None:
        answers = Counter(
            "extproc_answers_total",
            "Answers to requests that extproc was asked about, its own included, by the class of their status; none: "
            "the client got no status.",
            ["status"],
            registry=registry,
        )
        self._answers = {status: answers.labels(status) for status in (*_STATUSES, "none")}
        self._answer_s = Histogram(
            "extproc_answer_seconds",
            "From a request's first byte to its answer's last, where Envoy told it.",
            buckets=_ANSWER_BUCKETS_S,
            registry=registry,
        )
        self._first_byte_s = Histogram(
            "extproc_answer_first_byte_seconds",
            "From a request's first byte to the first of its answer, which engines may send before the first token.",
            buckets=_ANSWER_BUCKETS_S,
            registry=registry,
        )
        by_arm = Counter(
            "extproc_answers_by_arm_total",
            "The same answers by the arm of the canary that the request was in, and the class of their status.",
            ["arm", "status"],
            registry=registry,
        )
        self._answers_by_arm = {
            (arm, status): by_arm.labels(arm, status) for arm in _ARMS for status in (*_STATUSES, "none")
        }
        first_byte_s_by_arm = Histogram(
            "extproc_answer_first_byte_by_arm_seconds",
            "From a request's first byte to the first of its answer, by the arm of the policy's canary.",
            ["arm"],
            buckets=_ANSWER_BUCKETS_S,
            registry=registry,
        )
        self._first_byte_s_by_arm = {arm: first_byte_s_by_arm.labels(arm) for arm in _ARMS}
        self._output_tokens = Histogram(
            "extproc_answer_output_tokens",
            "Tokens of a request's answer, or of all its n answers together, where the engine told their number.",
            buckets=_OUTPUT_BUCKETS_TOKENS,
            registry=registry,
        )
        entries = Counter(
            "extproc_access_log_entries_total",
            "Envoy's reports of requests. verdict: read, or ignored (not of ours, not over yet, or too many at once).",
            ["verdict"],
            registry=registry,
        )
        self._unheeded = Counter(
            "extproc_choices_unheeded_total",
            "Requests that Envoy sent to another host than the chosen one, without having tried that. More than a few: "
            "the destination of the policy is not the one that Envoy's cluster heeds; see `extproc check --envoy`.",
            registry=registry,
        )
        self._entry_read, self._entry_ignored = entries.labels("read"), entries.labels("ignored")

    def ended(
        self,
        status: int,
        output_tokens: int | None,
        first_byte_s: float | None,
        duration_s: float | None,
        arm: str = "",
    ) -> None:
        """Envoy reported a finished request. Status 0, or none that HTTP has: no answer was begun.

        `arm` is the decision's; one that is none counts for no arm.
        """
        status_class = _STATUSES[status // 100 - 1] if 100 <= status < 600 else "none"
        if arm in _ARMS:
            self._answers_by_arm[arm, status_class].inc()
            if first_byte_s is not None:
                self._first_byte_s_by_arm[arm].observe(first_byte_s)
        if first_byte_s is not None:
            self._first_byte_s.observe(first_byte_s)
        if duration_s is not None:
            self._answer_s.observe(duration_s)
        self._entry_read.inc()
        self._answers[status_class].inc()
        if output_tokens is not None:
            self._output_tokens.observe(output_tokens)

    def unheeded(self) -> None:
        """Envoy went elsewhere."""
        self._unheeded.inc()

    def ignored(self, entries: int) -> None:
        """Envoy reported so many requests that tell us nothing: not ours, not over yet, or too many at once."""
        self._entry_ignored.inc(entries)
