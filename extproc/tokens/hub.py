"""A model's files from a hub of models, only where the configuration says `hub: true`: those files that are needed."""

from pathlib import Path

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import RemoteEntryNotFoundError

from extproc.tokens import folder
from extproc.tokens.folder import UnusableError


def fetch(repository: str, revision: str) -> Path:
    """The folder of a repository's files in the local cache, where they stay. Raises `UnusableError`.

    What is not there yet is downloaded. A commit that is there is not asked for again; of a branch the hub is asked
    where it stands, and what is there serves if the hub does not answer: found after 20 s where nobody listens, after
    minutes where somebody does and says nothing.
    """
    try:
        tokenizer = Path(hf_hub_download(repository, folder.TOKENIZER, revision=revision))
        commit = tokenizer.parent.name  # a branch may move on before the next file
        for name in folder.OPTIONAL:
            # Of files that a commit does not have the cache knows that too.
            if try_to_load_from_cache(repository, name, revision=commit) is None:
                _fetch_if_there(repository, name, commit)
    except Exception as error:  # noqa: BLE001 - the library and its HTTP client raise dozens of kinds
        raise UnusableError("a repository of a hub", f"{repository}@{revision}", error) from None
    return tokenizer.parent


def _fetch_if_there(repository: str, name: str, commit: str) -> None:
    try:
        hf_hub_download(repository, name, revision=commit)
    except RemoteEntryNotFoundError:
        return
