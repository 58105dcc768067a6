"""What is compared: a number's own name, and whether more of it is better.

`measured` reads the direction off the name (accuracy, BLEU and tokens per second rise, losses and errors fall) unless
it is said; where neither tells, less is taken to be better, and the answer says that it was taken so. No torch here.
"""

import math
import re

from headwise.spec import JsonSpec

FALLING = {
    *("loss", "nll", "ce", "xent", "entropy", "crossentropy", "bpb", "bpc", "bpt", "bits", "nats", "ppl", "perplexity"),
    *("surprisal", "deviance", "error", "errors", "err", "wer", "cer", "ter", "eer", "mse", "rmse", "mae"),
    *("mape", "smape", "rmsle", "brier", "ece", "fid", "kid", "fvd", "lpips", "kl", "divergence", "distance", "regret"),
    *("seconds", "time", "latency", "memory", "bytes", "misses", "inaccuracy", "toxicity", "forgetting"),
}
RISING = {
    *("accuracy", "acc", "top", "correct", "bleu", "sacrebleu", "chrf", "rouge", "rougel", "rougelsum", "meteor"),
    *(
        "bertscore",
        "comet",
        "cider",
        "bleurt",
        "f",
        "fscore",
        "em",
        "exact",
        "exactmatch",
        "match",
        "pass",
        "precision",
    ),
    *("recall", "sensitivity", "specificity", "auc", "auroc", "rocauc", "auprc", "ap", "map", "ndcg", "mrr", "hits"),
    *("mcc", "matthews", "pearson", "spearman", "kendall", "correlation", "r", "iou", "miou", "dice", "psnr", "ssim"),
    *(
        "mmlu",
        "hellaswag",
        "arc",
        "piqa",
        "siqa",
        "winogrande",
        "boolq",
        "openbookqa",
        "obqa",
        "lambada",
        "gsm",
        "gsm8k",
    ),
    *(
        "math",
        "humaneval",
        "mbpp",
        "truthfulqa",
        "triviaqa",
        "squad",
        "glue",
        "superglue",
        "cola",
        "sst",
        "bbh",
        "gpqa",
    ),
    *("ifeval", "agieval", "swebench", "core", "score", "reward", "return", "win", "winrate", "elo", "likelihood"),
    *("loglikelihood", "logprob", "elbo", "throughput", "tps", "speed", "speedup", "mfu"),
}
RATE = re.compile(r"(/|per[ _-]?)s(ec|econd)?\b")  # tokens/s, samples_per_second
NEGATED = re.compile(r"^(neg(ative)?|minus|1[ _]*[-−]|(1|one)[ _]?minus)(?=[ _\-a-z])")
SPLIT = re.compile(r"^(val(id(ation)?)?|test|train(ing)?|dev|eval(uation)?|mean|avg|final|best)(?=[a-z]{2})")


class Metric(JsonSpec):
    """A number that variants are compared by."""

    name: str = "test error"
    higher_is_better: bool = False
    assumed: bool = False  # its direction was neither said nor known from its name

    def loss(self, value: float) -> float:
        """Less is better, whatever the metric; infinite where there is no finite number."""
        if not math.isfinite(value):
            return math.inf
        return -value if self.higher_is_better else value

    def value(self, loss: float) -> float:
        """The metric's own number again."""
        return -loss if self.higher_is_better and math.isfinite(loss) else loss

    @property
    def best(self) -> str:
        return f"{'highest' if self.higher_is_better else 'lowest'} {self.name}"

    @property
    def direction(self) -> str:
        """In words, for the answer."""
        said = f"{self.name}: {'higher' if self.higher_is_better else 'lower'} is better"
        return f"{said}, which is assumed; if not, say --higher-is-better" if self.assumed else said


def measured(name: str, higher_is_better: bool | None = None) -> Metric:
    """A metric by its name; its direction as it is said, else as it is known, else lower is better."""
    rises = known_direction(name) if higher_is_better is None else higher_is_better
    return Metric(name=name, higher_is_better=bool(rises), assumed=rises is None)


def known_direction(name: str) -> bool | None:
    """Whether more is better by a metric's name; None where the name does not tell.

    "accuracy_error" is an error; "neg_log_loss" and "1-accuracy" are the other way round than what they negate.
    """
    text = name.strip().lower()
    if RATE.search(text.replace("_", " ")):
        return True
    negated = NEGATED.match(text)
    words = {part for spelled in (name.strip(), _camel(name.strip())) for part in _words(spelled)}
    if words & FALLING or not words & RISING:
        return bool(negated) if words & FALLING else None
    return not negated


def _camel(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)


def _words(text: str) -> set[str]:
    """Lower-case words without digits (top1 and rouge-2 are top and rouge), those with them too (gsm8k)."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    bare = {re.sub(r"\d+", "", word) for word in found} | {*found}
    return bare | {SPLIT.sub("", word) for word in bare}
