"""stub"""

from clpu.audit.run import Audit


def page(audit: Audit) -> str:
    return ""
