// Page `/docs`: shows the server's OpenAPI description.
'use strict';

const main = document.querySelector('main');
const make = (name, text, parent) => { const e = document.createElement(name); e.textContent = text; parent.append(e); return e; };
const key = decodeURIComponent(location.hash.slice(1));
fetch('openapi.json', key ? { headers: { Authorization: 'Bearer ' + key } } : {})
    .catch(() => { throw new Error('the server cannot be reached'); })
    .then(r => r.json()).then(api => {
    if (api.error) throw new Error(api.error.message);
    main.textContent = '';
    const schema = ref => api.components.schemas[ref.split('/').pop()];
    const type = s => s.$ref ? s.$ref.split('/').pop() : [].concat(s.type ?? (s.oneOf || []).map(type)).filter(t => t && t !== 'null').join(' or ');
    for (const [path, methods] of Object.entries(api.paths)) for (const [method, operation] of Object.entries(methods)) {
        make('h2', method.toUpperCase() + ' ' + path, main);
        make('p', operation.summary, main);
        const body = operation.requestBody?.content['application/json'].schema.allOf ?? [];
        const table = make('table', '', main);
        for (const part of body.map(p => schema(p.$ref)).reverse()) for (const [name, field] of Object.entries(part.properties ?? {})) {
            const row = make('tr', '', table);
            make('td', name, row); make('td', type(field), row); make('td', field.description ?? '', row);
        }
        if (body.length) make('p', 'Responses: ' + Object.entries(operation.responses).map(([code, r]) => code + ' ' + r.description).join('; ') + '.', main).className = 'status';
    }
}).catch(error => { main.textContent = error.message; });
